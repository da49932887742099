"""What things cost, in seconds and bytes: one model, for placers, simulator and emulated devices."""
