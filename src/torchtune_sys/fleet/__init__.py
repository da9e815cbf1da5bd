"""Compare many hosts, or one host over time: facts files, differences and their weight, and collecting with existing transports."""
