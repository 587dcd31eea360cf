-- TorchServe's gRPC names the model inside the message. This reads it there, so that routes can choose by it, and
-- turns errors that TorchServe wraps as answers, or calls INTERNAL, into the gRPC status that they mean.

local FRAME = 5                 -- compressed flag and length, ahead of each message
local MAX_FIELDS = 10000
-- An entry of the message's map `input`: "slipway-stream" = "true". It tells handlers that pieces may be sent; TorchServe
-- does not say which call it is, and pieces to a unary one would break the worker for good.
local STREAM_INPUT = "slipway-stream"
local STREAM_ENTRY = "\26\22\10\14" .. STREAM_INPUT .. "\18\4true"

local MAX_ERROR_BYTES = 16384   -- of an error body that is looked at
local ERROR_PREFIX = '{"type":"urn:slipway:error:'

local INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED = 3, 5, 8
local UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 12, 13, 14

local CODES = {
  [400] = 3, [404] = 5, [408] = 4, [409] = 10, [413] = 8, [415] = 3, [422] = 3, [429] = 8,
  [500] = 13, [501] = 12, [503] = 14, [504] = 4,
}

-- A base-128 number: value and the position behind it, or nil when it runs out of bytes.
local function varint(read, at)
  local value, scale = 0, 1
  local bytes = read(at, 10)
  for i = 1, #bytes do
    local byte = string.byte(bytes, i)
    value = value + (byte % 128) * scale
    if byte < 128 then return value, at + i end
    scale = scale * 128
  end
  return nil
end

-- Model name and version (fields 1 and 2) of a PredictionsRequest and whether an input has a name of ours, or nil for
-- what is no such message. Only tags, lengths and short names are copied out of the body, however large the inputs are.
-- An entry of the map `input` (field 3) is a message with its name in field 1: `nested` reads just that.
local function names(read, size, at, nested)
  local model, version, reserved = "", "", false
  for _ = 1, MAX_FIELDS do
    if at == size then return model, version, reserved end
    if at > size then return nil end
    local tag, length
    tag, at = varint(read, at)
    if not tag then return nil end
    local kind = tag % 8
    if kind == 0 then
      _, at = varint(read, at)
      if not at then return nil end
    elseif kind == 1 then
      at = at + 8
    elseif kind == 5 then
      at = at + 4
    elseif kind == 2 then
      length, at = varint(read, at)
      if not length or at + length > size then return nil end
      if tag == 26 and not nested then
        local name = names(read, at + length, at, true)
        if not name then return nil end
        reserved = reserved or name == STREAM_INPUT
      elseif nested and (tag ~= 10 or length > 256) then
        -- A value, or a name that is too long to be ours.
      elseif tag == 10 or tag == 18 then
        if length > 256 then return nil end
        local text = length > 0 and read(at, length) or ""
        if tag == 10 then model = text else version = text end
      end
      at = at + length
    else
      return nil
    end
  end
  return nil
end

-- grpc-message is percent-encoded.
local function encode(text)
  return (string.gsub(text, "[^ -$&-~]", function(c) return string.format("%%%02X", string.byte(c)) end))
end

local function utf8(code)
  if code < 0x80 then return string.char(code) end
  if code < 0x800 then return string.char(0xC0 + math.floor(code / 64), 0x80 + code % 64) end
  return string.char(0xE0 + math.floor(code / 4096), 0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
end

local ESCAPES = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

-- The JSON string that begins behind `at`.
local function json_string(text, at)
  local parts = {}
  while at <= #text do
    local plain = string.match(text, '^[^"\\]+', at)
    if plain then
      parts[#parts + 1] = plain
      at = at + #plain
    elseif string.sub(text, at, at) == "\\" then
      local escape = string.sub(text, at + 1, at + 1)
      if escape == "u" then
        parts[#parts + 1] = utf8(tonumber(string.sub(text, at + 2, at + 5), 16) or 63)
        at = at + 6
      else
        parts[#parts + 1] = ESCAPES[escape] or escape
        at = at + 2
      end
    else
      break
    end
  end
  return table.concat(parts)
end

-- gRPC code and message of an error body, or nil.
local function wrapped_error(prediction)
  local status = string.match(prediction, '^' .. ERROR_PREFIX .. '[^"]*","status":(%d+)')
  if not status then return nil end
  local _, at = string.find(prediction, '"detail":"', 1, true)
  local code = CODES[tonumber(status)] or (tonumber(status) < 500 and INVALID_ARGUMENT or INTERNAL)
  return code, at and json_string(prediction, at + 1) or "the request failed"
end

-- The prediction at the start of an answer's first message (field 1 of PredictionResponse).
local function prediction_of(data)
  if #data <= FRAME + 1 or string.byte(data, FRAME + 1) ~= 10 then return nil end
  local _, at = varint(function(from, count) return string.sub(data, from + 1, from + count) end, FRAME + 1)
  return at and string.sub(data, at + 1)
end

local function refuse(handle, code, message)
  handle:respond(
    { [":status"] = "200", ["content-type"] = "application/grpc", ["grpc-status"] = tostring(code) }, message)
end

-- Appends STREAM_ENTRY to the message; fields of a message stand in any order.
local function mark_stream(handle, headers, body, size)
  local length = size - FRAME + #STREAM_ENTRY
  local frame = string.char(0, math.floor(length / 16777216) % 256, math.floor(length / 65536) % 256,
    math.floor(length / 256) % 256, length % 256)
  body:setBytes(frame .. body:getBytes(FRAME, size - FRAME) .. STREAM_ENTRY)
  headers:remove("content-length")
end

function envoy_on_request(handle)
  local body = handle:body(true)
  local size = body:length()
  local function read(at, count)
    count = math.min(count, size - at)
    return count > 0 and body:getBytes(at, count) or ""
  end
  if size < FRAME then
    return refuse(handle, INVALID_ARGUMENT, "the call carries no message")
  end
  if string.byte(read(0, 1)) ~= 0 then
    return refuse(handle, UNIMPLEMENTED, "compressed messages are not supported; send them uncompressed")
  end
  local model, version, reserved = names(read, size, FRAME, false)
  if not model then
    return refuse(handle, INVALID_ARGUMENT, "the message is no PredictionsRequest")
  end
  if reserved then
    return refuse(handle, INVALID_ARGUMENT, 'the input name "' .. STREAM_INPUT .. '" is reserved; send "stream" = "true"')
  end
  if model == "" then
    return refuse(handle, INVALID_ARGUMENT, "model_name is empty; name the model")
  end
  if string.find(model .. version, "[^%w._-]") then
    return refuse(handle, NOT_FOUND, "no model is served by the name in model_name, or no such model_version")
  end
  local headers = handle:headers()
  headers:replace("x-slipway-model", model)
  headers:remove("x-slipway-version")
  if version ~= "" then headers:add("x-slipway-version", version) end
  handle:clearRouteCache()

  local route = handle:metadata()
  if not route:get("known") then
    return refuse(handle, NOT_FOUND, "no model " .. model .. " is served")
  end
  local limit = route:get("limit_bytes")
  if limit and size - FRAME > limit then
    return refuse(handle, RESOURCE_EXHAUSTED, string.format(
      "%s version %d accepts requests of up to %d bytes", route:get("model"), route:get("version"), limit))
  end
  if string.find(headers:get(":path"), "/StreamPredictions", 1, true) then mark_stream(handle, headers, body, size) end
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local status = headers:get("grpc-status")
  if status then
    local message = headers:get("grpc-message") or ""
    if status == tostring(INTERNAL) and string.find(message, "has no worker", 1, true) then
      -- TorchServe's word for a full queue, or for a process without a worker, is INTERNAL.
      headers:replace("grpc-status", tostring(UNAVAILABLE))
      headers:replace("grpc-message", "the queue is full or no worker is up; try again")
    elseif string.find(message, "%%0Aorg%.pytorch[%w.]+$") then
      -- Its messages end in the name of a Java class.
      headers:replace("grpc-message", (string.gsub(message, "%%0Aorg%.pytorch[%w.]+$", "")))
    end
    return
  end
  local data = ""
  for chunk in handle:bodyChunks() do
    data = data .. chunk:getBytes(0, math.min(chunk:length(), MAX_ERROR_BYTES))
    local prediction = prediction_of(data)
    if prediction then
      local seen = math.min(#prediction, #ERROR_PREFIX)
      if string.sub(prediction, 1, seen) ~= string.sub(ERROR_PREFIX, 1, seen) then return end
    elseif #data > FRAME + 10 then
      return
    end
    if #data >= MAX_ERROR_BYTES then break end
  end
  local prediction = prediction_of(data)
  if not prediction then return end
  local code, message = wrapped_error(prediction)
  if not code then return end
  -- The message has gone ahead; a status other than OK behind it is what the client sees.
  local trailers = handle:trailers()
  if trailers and trailers:get("grpc-status") == "0" then
    trailers:replace("grpc-status", tostring(code))
    trailers:replace("grpc-message", encode(message))
  end
end
