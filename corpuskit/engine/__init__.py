"""From a pipeline file to sealed phases.

config, settings    read the YAML file; every error has file, line and column
registry            finds stages by name
plan                turns stages into phases; checks what can be known before anything runs
inputs, fingerprint the files of a run, and the hash of all that decides what a phase writes
rundir, phase       the run directory; units and tasks of a phase, what is left, its seal
pipeline, callbacks runs the phases, one after another, and says how far it is
executors/          runs the tasks of a phase: processes here, Slurm, Ray
task, stream        one task: its units, fused streaming stages over one cell
context, records    what a stage may touch, and what is recorded of a cell
resources, compiling, warmup    memory, disk, CPU time and kernels: needed, available, compiled
status, mixture     what a run directory says: funnel, accounts, integrity, what training takes
progress, eta, monitor          how far a run is, how long it takes, and how others watch it
"""
