"""Lin et al. (2020): noise first, clip second; which factors matter?"""
