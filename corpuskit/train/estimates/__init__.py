"""What a run takes: operations, memory, time, cost; before it is started, and as MFU."""
