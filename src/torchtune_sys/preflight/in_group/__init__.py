"""The pre-flight inside a training script: ranks that have torch and a process group already. Notes go over torch's own store, which each rank
can ask without waiting; the judge is that of the joint pre-flight."""
