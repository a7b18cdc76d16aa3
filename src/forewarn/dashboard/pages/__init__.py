"""Pages of the dashboard, one module for each subject."""
