"""What this repository tests its own stores with: failing disks, power cuts, damage, and a naive model."""
