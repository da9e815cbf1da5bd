"""The nineteenth list: what clusters report of stragglers, loaders, clocks, disks and versions, beside what torch's operations answer.
Which four of the twelve are sealed ``random.Random(1930).sample(range(12), 4)`` decided."""
