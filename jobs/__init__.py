"""What runs inside a training job: trainer, coordinator, data position, checkpoints."""
