"""`sslengine VERB`: one file for each verb. Nothing is imported before a verb is chosen."""
