"""What the benchmarks of recovery train: one model, one batch, the same for ours and for stock Ray Train.

A step is some tens of milliseconds of real computing on one core, the state with Adam's momenta 16 MB.
"""

from __future__ import annotations

from typing import Any

WIDTH, CLASSES, SAMPLES = 1024, 10, 4096
GLOBAL_BATCH = 192


def make(seed: int = 0) -> tuple[Any, Any, Any]:
    """(dataset, model, optimizer)."""
    import torch

    torch.manual_seed(seed)
    x = torch.randn(SAMPLES, 256)
    y = torch.randint(0, CLASSES, (SAMPLES,))
    model = torch.nn.Sequential(
        torch.nn.Linear(256, WIDTH),
        torch.nn.GELU(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.GELU(),
        torch.nn.Linear(WIDTH, CLASSES),
    )
    return torch.utils.data.TensorDataset(x, y), model, torch.optim.Adam(model.parameters(), lr=1e-4)
