"""The twenty-third list: kernels that are wrong for some values, ranges, lengths, places and layouts alone (as Meta's "Silent Data Corruptions at Scale", 2021, and Google's
"Cores that don't count", HotOS 2021, tell of processors), planted in torch's dispatcher; what writes beyond its end, changes what it takes or is not there when it says so; ranks that
stand still now and then or grow slower; folders and mapped files of network file systems. Which eight of the twenty-five are sealed ``random.Random(2032).sample`` decided over
their sorted names."""
