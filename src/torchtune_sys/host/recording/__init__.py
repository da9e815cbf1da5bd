"""Write anonymised recordings of a host, without names, addresses and secrets."""
