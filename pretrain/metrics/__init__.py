"""What a run says: metric files, progress, tables."""
