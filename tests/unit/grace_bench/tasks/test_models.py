import pytest
import torch
from torch.nn import functional

from grace_bench.tasks import find_task, models
from grace_bench.tasks.models.layers import BatchNorm, SameConv, variance_scaling_

COUNTS = {  # the survey's Table II, and what the documentation says
    "resnet20": (269_467, 51),
    "densenet40_k12": (357_491, 158),
    "resnet9": (6_573_120, 25),
    "vgg16_cifar": (14_982_987, 30),
    "resnet50": (25_559_081, 161),
    "vgg19": (143_671_337, 38),
    "ncf": (31_832_577, 10),
    "lstm_ptb": (19_775_200, 7),
    "unet": (1_850_305, 46),
    "gpt2_small": (124_439_808, 148),
    "resnet20_small": (67_890, 51),
    "densenet_small": (25_018, 62),
    "resnet9_small": (103_944, 25),
    "vgg16_small": (335_386, 30),
    "resnet50_small": (527_417, 53),
    "vgg11_small": (623_497, 22),
    "ncf_small": (390_801, 10),
    "lstm_small": (1_443_600, 7),
    "unet_small": (116_017, 46),
    "gpt_small": (842_496, 52),
    "resnet8_tiny": (75_194, 21),
    "lstm_tiny": (267_112, 5),
    "gpt_tiny": (120_576, 28),
    "digits": (19_074, 23),
    "digits_wide": (1_126_410, 6),
    "digits_small": (19_074, 23),
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_and_vectors_are_those_of_the_table(name):
    with torch.device("meta"):
        model = find_task(name).model()
    sizes = [p.numel() for p in model.parameters() if p.requires_grad]
    assert (sum(sizes), len(sizes)) == COUNTS[name]


@pytest.mark.parametrize(
    ("build", "image", "out"),
    [
        (models.ResNet20Model, (3, 32, 32), (11,)),
        (models.DenseNet, (3, 32, 32), (11,)),
        (models.ResNet9Model, (3, 32, 32), (10,)),
        (models.VGG16Cifar, (3, 32, 32), (11,)),
        (models.ResNet50Model, (3, 224, 224), (1001,)),
        (models.VGG19Model, (3, 224, 224), (1001,)),
        (models.UNetModel, (1, 512, 512), (1, 512, 512)),
    ],
)
def test_full_size_shapes(build, image, out):
    with torch.device("meta"):
        assert build()(torch.empty(2, *image)).shape == (2, *out)


def test_same_padding_is_tensorflows():
    # 32 pixels at stride 2 and kernel 3: 16 outputs, and the one pixel of padding is at the bottom and the right.
    conv = SameConv(1, 1, 3, 2)
    x = torch.randn(1, 1, 32, 32)
    by_hand = functional.conv2d(functional.pad(x, (0, 1, 0, 1)), conv.weight, stride=2)
    assert torch.equal(conv(x), by_hand)
    assert by_hand.shape[-1] == 16
    even = SameConv(1, 1, 2)  # the U-Net's 2 x 2: bottom and right again
    assert torch.equal(even(x), functional.conv2d(functional.pad(x, (0, 1, 0, 1)), even.weight))


def test_a_norm_without_scale_has_only_a_shift():
    norm = BatchNorm(4, scale=False, decay=0.9)
    assert [name for name, _ in norm.named_parameters()] == ["bias"]
    assert norm.momentum == pytest.approx(0.1)
    x = 3 + 2 * torch.randn(64, 4, 5, 5)
    out = norm(x)
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.std((0, 2, 3)), torch.ones(4), atol=1e-2, rtol=0)


@pytest.mark.parametrize(
    ("mode", "uniform", "fan"), [("fan_in", False, 90), ("fan_out", False, 360), ("fan_in", True, 90)]
)
def test_variance_scaling(mode, uniform, fan):
    torch.manual_seed(0)
    weight = torch.empty(40, 10, 3, 3)
    variance_scaling_(weight, 2.0, mode, uniform)
    assert weight.var().item() == pytest.approx(2.0 / fan, rel=0.1)


def test_the_lstm_layer_is_torchs():
    torch.manual_seed(0)
    model = models.LSTMLanguageModel(11, 6, layers=1, dropout=0.0)
    theirs = torch.nn.LSTM(6, 6)
    layer = model.layers[0]
    with torch.no_grad():
        layer.bias.uniform_(-1, 1)
        theirs.weight_ih_l0.copy_(layer.kernel[:, :6])
        theirs.weight_hh_l0.copy_(layer.kernel[:, 6:])
        theirs.bias_ih_l0.copy_(layer.bias)
        theirs.bias_hh_l0.zero_()
    tokens = torch.randint(0, 11, (3, 7))
    logits, _ = model(tokens)
    outputs, _ = theirs(functional.embedding(tokens.t(), model.embedding))
    torch.testing.assert_close(logits, functional.linear(outputs, model.weight, model.bias).transpose(0, 1))


def test_the_lstm_carries_its_state():
    torch.manual_seed(0)
    model = models.LSTMLanguageModel(11, 6, dropout=0.0)
    tokens = torch.randint(0, 11, (2, 8))
    whole, _ = model(tokens)
    first, state = model(tokens[:, :5])
    second, _ = model(tokens[:, 5:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    assert not any(part.requires_grad for pair in state for part in pair)


def test_gpt_sees_only_the_past():
    torch.manual_seed(0)
    model = models.GPT(13, 16, 2, 2, 8)
    tokens = torch.randint(0, 13, (1, 10))
    changed = tokens.clone()
    changed[0, 6:] = (changed[0, 6:] + 1) % 13
    torch.testing.assert_close(model(tokens)[:, :6], model(changed)[:, :6])
    assert not torch.allclose(model(tokens)[:, 6:], model(changed)[:, 6:])
