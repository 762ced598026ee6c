"""A run: what is asked, how it trains, what is measured, predicted and recorded."""
