"""The training loop, sharded over ranks by PyTorch, with checkpoints, guard and export."""
