"""A script for Horovod with a compressor of its own, which GRACE never knew."""

import horovod.torch as hvd
import torch
from grace_dl.torch import Communicator, Compressor
from grace_dl.torch.communicator.allgather import Allgather
from grace_dl.torch.memory.residual import ResidualMemory
from horovod.torch import allgather_async, synchronize

hvd.init()
torch.manual_seed(42)


class Largest(Compressor):
    """Numbers above a tenth of the largest: sizes differ between ranks."""

    def __init__(self):
        super().__init__(tensors_size_are_same=False)

    def compress(self, tensor, name):
        flat = tensor.flatten()
        (index,) = torch.where(flat.abs() > 0.1 * flat.abs().max())
        return [flat[index], index], (tensor.numel(), tensor.size())

    def decompress(self, tensors, ctx):
        numel, shape = ctx
        return torch.zeros(numel).scatter_(0, tensors[1], tensors[0]).view(shape)


class Half(Compressor):
    def compress(self, tensor, name):
        return [tensor.half().flatten()], tensor.size()

    def decompress(self, tensors, ctx):
        return tensors[0].float().view(ctx)


class Gathering(Communicator):
    """A communicator of its own, by Horovod's asynchronous functions."""

    def __init__(self, compressor, memory, world_size):
        super().__init__(compressor, memory)
        self.world_size = world_size

    def async_send(self, tensors_compressed, name):
        return [allgather_async(t) for t in tensors_compressed]

    def wait_receive(self, handles, ctx):
        pieces = zip(*[synchronize(handle).chunk(self.world_size) for handle in handles])
        return self.compressor.aggregate([self.compressor.decompress(p, ctx) for p in pieces]) / self.world_size


for grc in (Allgather(Largest(), ResidualMemory(), hvd.size()), Gathering(Half(), ResidualMemory(), hvd.size())):
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, grace=grc, named_parameters=model.named_parameters())
    data, teacher = torch.Generator().manual_seed(hvd.rank()), torch.randn(32, 4)
    losses = []
    for _ in range(40):
        x = torch.randn(64, 32, generator=data)
        loss = torch.nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    flat = torch.cat([p.detach().view(-1) for p in model.parameters()])
    every = hvd.allgather(flat[None], name="check")
    assert bool((every == every[0]).all())
    assert losses[-1] < 0.7 * losses[0], losses
print("rank %d learns" % hvd.rank())
