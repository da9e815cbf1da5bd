"""The twenty-fifth list: what goes wrong in ordinary ways at other places (sums, rates, seeds, labels, moments, epochs), ranks that are limited or blocked a part of the time, files and links that have
changed. Which six of the eighteen are sealed ``random.Random(2034).sample`` decided over their sorted names."""
