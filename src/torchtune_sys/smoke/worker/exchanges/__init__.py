"""What the stage allreduce tries beside its sums: every exchange by a table, whether they come in time, and whose part is wrong or late."""
