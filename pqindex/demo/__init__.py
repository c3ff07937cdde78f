"""The demo: from Parquet files to a trained model, on real data that comes with the package."""
