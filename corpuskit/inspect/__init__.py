"""Finished and running runs, read only: report, why, samples, tune, diff, dataset card."""
