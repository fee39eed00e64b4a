"""The use cases of the control plane, each one transaction. `plane.ControlPlane` puts them together."""
