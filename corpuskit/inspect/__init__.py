"""Runs, read only: report, why, samples, tune, diff, dataset card; and checks of stages."""
