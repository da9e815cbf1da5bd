"""Many hosts, or one on two days: the small facts file, what differs, how heavy that is, and collecting over what is there."""
