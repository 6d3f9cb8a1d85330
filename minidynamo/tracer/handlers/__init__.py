"""What calls and attribute reads mean for each family of trackers."""
