"""What one operator carries, on a real control plane with nodes that kwok plays: see __main__."""
