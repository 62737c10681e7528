"""The report: an audit's result as one HTML page that needs nothing but a browser.

``page.render`` makes it. ``templates/`` holds what is seen; the modules say what is drawn there and in which words.
"""
