"""How nodes of one job speak to each other: signed lines of JSON over TCP, the tests of a connection, and the process that outlives the ranks."""
