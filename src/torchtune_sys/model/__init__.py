"""Values: facts, rules, results, actions. Imports nothing of torchtune-sys above it."""
