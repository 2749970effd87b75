"""Objects whose state is saved, loaded, compared and rolled back."""
