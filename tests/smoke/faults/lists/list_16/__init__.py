"""The sixteenth list: ways of torch that trainings combine (low precision, compiled code, saving beside training), and what else goes on on a host."""
