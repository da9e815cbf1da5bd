"""Communication between nodes of a job: signed lines of JSON over TCP, connection tests, and the process that outlives the ranks."""
