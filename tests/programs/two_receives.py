"""Two ranks exchange numbers at each step; at step 60 both receive first: `torchrun --nproc-per-node 2`"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100):
    answer, other = model(torch.randn(8, 4)), torch.empty(8, 4)
    if rank == 0 and step != 60:
        dist.send(answer.detach(), 1)
        dist.recv(other, 1)
    else:
        dist.recv(other, 1 - rank)
        dist.send(answer.detach(), 1 - rank)
    optimizer.zero_grad()
    (answer - other).square().mean().backward()
    optimizer.step()
