"""The gateway: Envoy, the files that configure it, and the companion process that keeps them current.

Read in this order: ``xds`` (a configuration as Envoy's resources, pure), ``bootstrap`` (what Envoy starts from),
``switching`` (how one configuration follows another without losing a request), ``companion`` (the process around it).
"""
