-- TorchServe's own errors, in the words of the data plane. Bodies that a handler wrote as problem+json pass untouched.

local MAX_BODY_BYTES = 65536

local function quote(text)
  text = string.gsub(text, '[%c"\\]', function(c)
    if c == '"' or c == "\\" then return "\\" .. c end
    return string.format("\\u%04x", string.byte(c))
  end)
  return '"' .. text .. '"'
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local status = tonumber(headers:get(":status"))
  if status < 400 then return end
  local content_type = headers:get("content-type") or ""
  local is_json = string.find(content_type, "application/json", 1, true)
  local length = tonumber(headers:get("content-length") or "")
  if not length or length > MAX_BODY_BYTES or (length > 0 and not is_json) then return end

  -- Exactly the shape that TorchServe itself writes; a user's own handler may write any other.
  local body = handle:body(true)
  local text = length > 0 and body:getBytes(0, body:length()) or ""
  headers = handle:headers()
  local message = string.match(text, '^{%s*"code":%s*%d+,%s*"type":%s*"%a+",%s*"message":%s*"(.*)"%s*}%s*$')
  if length > 0 and not message then return end

  local route = handle:metadata()
  local model, version = route:get("model"), route:get("version")
  local kind, title, detail, extra = "prediction-failed", "The prediction failed", message or "", ""
  if status == 413 then
    local limit = route:get("limit_bytes")
    kind, title = "request-too-large", "The request is too large"
    detail = string.format("%s version %d accepts requests of up to %d bytes", model, version, limit)
    extra = string.format(',"limit_bytes":%d', limit)
  elseif message and string.find(message, "has no worker", 1, true) then
    kind, title = "overloaded", "The queue is full"
    detail = string.format("the queue of %s version %d is full, or it has no worker up; try again", model, version)
    headers:replace("retry-after", "2")
  elseif detail == "" then
    detail = string.format("%s version %d answered %d without a reason", model, version, status)
  end
  -- TorchServe's message is the inside of a JSON string already; ours is plain text.
  local quoted = (detail == message) and ('"' .. detail .. '"') or quote(detail)
  local problem = string.format(
    '{"type":"urn:slipway:error:%s","status":%d,"title":"%s","detail":%s,"model":"%s","version":%d%s}',
    kind, status, title, quoted, model, version, extra)
  local written = body:setBytes(problem)
  headers:replace("content-length", tostring(written))
  headers:replace("content-type", "application/problem+json")
end
