"""A fleet of several Ray clusters: how the controller reaches a head that only dials out, and which job runs where."""
