-- Says which model is unknown. Runs only on requests that no route of a known model took.

function envoy_on_request(handle)
  local path = handle:headers():get(":path")
  local model, rest = string.match(path, "^/predictions/([^/?]+)(.*)$")
  if not model then model, rest = string.match(path, "^/v2/models/([^/?]+)(.*)$") end
  if not model then return end
  model = string.gsub(string.sub(model, 1, 100), "[^%w._~%%-]", function(c)
    return string.format("%%%02X", string.byte(c))
  end)
  local kind, title, detail = "unknown-model", "No such model", "no model " .. model .. " is served"
  rest = string.gsub(rest, "%?.*$", "")
  if string.sub(path, 1, 4) == "/v2/" and rest ~= "" and rest ~= "/infer" and rest ~= "/ready"
      and not string.find(rest, "^/versions/") then
    kind, title = "unknown-address", "Nothing is served here"
    detail = "the Open Inference Protocol has /infer and /ready below a model"
  end
  local body = string.format(
    '{"type":"urn:slipway:error:%s","status":404,"title":"%s","detail":"%s","model":"%s"}', kind, title, detail, model)
  handle:respond({ [":status"] = "404", ["content-type"] = "application/problem+json" }, body)
end
