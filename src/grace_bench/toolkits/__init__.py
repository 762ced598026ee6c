"""The suite's tasks on other toolkits than torch: the same data, weights, schedules and metrics; another model and step.

No toolkit is imported before a worker needs it.
"""
