"""The twenty-eighth list: what a training step rests on and no stage compares: groups of ranks beside all of them, memory that is laid out as models have it, numbers of no dimension and of no elements,
second derivatives, a second model, state and places that are given. Which seven of the twenty-one are sealed ``random.Random(2037).sample`` decided over their sorted names."""
