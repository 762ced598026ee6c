import pytest

from grace_bench.tasks import find_task


def rates(name, steps, **attributes):
    task = find_task(name)
    task.steps = steps
    for key, value in attributes.items():
        setattr(task, key, value)
    return [task.lr(step) for step in range(steps)]


def test_resnet20_falls_at_epochs_163_and_245_of_328():
    lr = rates("resnet20", 328)
    assert [lr[k] for k in (0, 162, 163, 244, 245, 327)] == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    assert rates("densenet40_k12", 328) == rates("vgg16_cifar", 328) == lr


def test_resnet9_rises_to_epoch_5_and_falls_to_epoch_24():
    lr = rates("resnet9", 240)
    assert lr[0] == 0
    assert max(lr) == lr[50] == pytest.approx(0.4)
    assert lr[25] == pytest.approx(0.2)
    assert lr[145] == pytest.approx(0.2)
    assert 0 < lr[239] < 0.003


@pytest.mark.parametrize(("workers", "peak"), [(4, 0.128), (8, 0.256)])
def test_resnet50_is_by_all_workers_images(workers, peak):
    lr = rates("resnet50", 900, workers=workers)
    assert lr[0] == pytest.approx(peak / 50)
    assert [lr[k] for k in (49, 299, 300, 600, 800)] == pytest.approx([peak, peak, peak / 10, peak / 100, peak / 1000])


def test_vgg19_falls_at_epochs_30_and_60_of_90():
    lr = rates("vgg19", 90)
    assert [lr[k] for k in (0, 29, 30, 60)] == pytest.approx([0.01, 0.01, 0.001, 0.0001])


def test_the_lstm_falls_after_the_seventh_epoch_of_25():
    lr = rates("lstm_ptb", 2500)
    assert lr[699] == 1
    assert [lr[k] for k in (700, 800, 2400)] == pytest.approx([0.8, 0.64, 0.8**18])
    small = rates("lstm_small", 500)
    assert (small[139], small[140], small[160]) == (1, pytest.approx(0.8), pytest.approx(0.64))


def test_the_unet_falls_every_500_of_2500():
    lr = rates("unet", 2500)
    assert [lr[k] for k in (499, 500, 2499)] == pytest.approx([1e-4, 0.8e-4, 1e-4 * 0.8**4])


def test_gpt_warms_up_for_200_steps_and_ends_at_a_tenth():
    lr = rates("gpt2_small", 2000)
    assert lr[0] == pytest.approx(6e-4 / 200)
    assert max(lr) == lr[199] == pytest.approx(6e-4)
    assert lr[-1] == pytest.approx(6e-5, rel=1e-3)


def test_ncf_is_constant():
    assert set(rates("ncf", 5)) == {0.0045}
