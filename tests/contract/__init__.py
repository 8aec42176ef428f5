"""What every adapter of a port must do, written once; `test_twins` runs it on the in-memory ones, integration on the real."""
