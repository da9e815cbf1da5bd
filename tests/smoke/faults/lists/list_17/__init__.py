"""The seventeenth list: what a step of training takes from torch and no stage compares."""
