"""What runs on a machine of a cell: boot, join, Ray, the notice watcher and the dead-man's timer; on the head also the
join desk and the cell's agent. Starts as `python -m tradewind.node boot --plan FILE`, from the user-data."""
