"""The Streamlit dashboard: pages that draw what `kareus.service` gives."""
