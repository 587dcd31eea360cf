"""The gRPC messages that clients of the gateway speak: TorchServe's inference service and the Open Inference Protocol.

``inference_pb2`` and ``open_inference_pb2`` hold the messages, ``…_pb2_grpc`` the stubs and services; import the one
that is needed. They are generated from the ``.proto`` files beside them and committed, so that nobody needs a
compiler to run Slipway. After a change to a ``.proto``: ``python -m serving.protocol.generate``.
"""
