"""Child processes: whoever starts one, as whom, with which environment, under which deadline; and what those of ours run inside."""
