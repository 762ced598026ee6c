"""A training script in the manner of GRACE's examples for Horovod and PyTorch. It knows nothing of Grace."""

import argparse
import os
import signal

import horovod.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from grace_dl.torch.communicator.allgather import Allgather
from grace_dl.torch.compressor.topk import TopKCompressor
from grace_dl.torch.helper import grace_from_params
from grace_dl.torch.memory.residual import ResidualMemory

parser = argparse.ArgumentParser(description="digits")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.5)
parser.add_argument("--by", choices=["class", "helper", "nothing"], default="class")
parser.add_argument("--fail", action="store_true")
parser.add_argument("--die", action="store_true")
args = parser.parse_args()

# Horovod: initialize library.
hvd.init()
torch.manual_seed(42 + hvd.rank())  # the broadcast below makes the models equal
torch.set_num_threads(1)

teacher = torch.randn(64, 10, generator=torch.Generator().manual_seed(1))
inputs = torch.randn(2048, 64, generator=torch.Generator().manual_seed(2))
dataset = torch.utils.data.TensorDataset(inputs, (inputs @ teacher).argmax(1))
# Horovod: use DistributedSampler to partition the training data.
sampler = torch.utils.data.distributed.DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = torch.utils.data.DataLoader(dataset, batch_size=64, sampler=sampler)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


model = Net()

# Horovod: scale learning rate by the number of workers.
optimizer = optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=args.momentum)

# Horovod: broadcast parameters & optimizer state.
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

# GRACE: compression algorithm.
if args.by == "class":
    grc = Allgather(TopKCompressor(0.3), ResidualMemory(), hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, grc, named_parameters=model.named_parameters())
elif args.by == "helper":
    params = {"compressor": "qsgd", "memory": "none", "communicator": "allgather", "world_size": hvd.size()}
    grc = grace_from_params(params)
    optimizer = hvd.DistributedOptimizer(optimizer, grace=grc, named_parameters=model.named_parameters())
else:
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def metric_average(val, name):
    return hvd.allreduce(torch.tensor(val), name=name).item()


accuracy = 0.0
for epoch in range(args.epochs):
    model.train()
    sampler.set_epoch(epoch)
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        if args.fail and batch_idx == 3 and hvd.rank() == 1:
            raise RuntimeError("the script's own error")
        if args.die and batch_idx == 3 and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = metric_average((model(inputs).argmax(1) == dataset.tensors[1]).float().mean().item(), "avg_accuracy")

flat = torch.cat([p.detach().view(-1) for p in model.parameters()])
replicas = hvd.allgather(flat[None], name="check")
assert bool((replicas == replicas[0]).all()), "replicas differ"
assert hvd.broadcast_object({"rank": hvd.rank()}, root_rank=1)["rank"] == 1
assert hvd.synchronize(hvd.allreduce_async(torch.ones(2), op=hvd.Sum)).tolist() == [hvd.size()] * 2
if hvd.rank() == 0:
    print("size %d local %d accuracy %.3f" % (hvd.size(), hvd.local_size(), accuracy))
