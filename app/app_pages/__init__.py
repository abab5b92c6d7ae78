"""The pages' scripts; `app.navigation` lists them."""
