"""From a pipeline file to sealed phases: configuration, plan, fingerprints, tasks, executors."""
