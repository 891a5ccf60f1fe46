{{- define "boomerang.name" -}}
{{- if contains "boomerang" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-boomerang" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* Labels that select the pods of one component: (list $ "router"). */ -}}
{{- define "boomerang.selector" -}}
app.kubernetes.io/name: boomerang
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "boomerang.labels" -}}
{{ include "boomerang.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end }}

{{- define "boomerang.account" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "boomerang.name" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- /* An image's address: (list .Values.image "the tag where none is given"). */ -}}
{{- define "boomerang.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}{{ else }}{{ $image.repository }}:{{ $image.tag | default (index . 1) }}{{ end }}
{{- end }}

{{- define "boomerang.asksKubernetes" -}}
{{- if or .Values.config.kubernetes_prefill .Values.config.kubernetes_decode }}yes{{ end }}
{{- end }}

{{- define "boomerang.adminPort" -}}
{{- with .Values.config.admin_port }}{{ if ne (toString .) "none" }}{{ int . }}{{ end }}{{ end }}
{{- end }}

{{- define "boomerang.redisSecret" -}}
{{- .Values.redis.passwordSecret.name | default (printf "%s-redis" (include "boomerang.name" .)) }}
{{- end }}

{{- /* What the schema cannot see: settings that do not go together. */ -}}
{{- define "boomerang.checked" -}}
{{- $config := .Values.config -}}
{{- $shared := or .Values.redis.enabled (and $config.store (ne $config.store "memory")) -}}
{{- $several := ternary (gt (int .Values.autoscaling.maxReplicas) 1) (gt (int .Values.replicas) 1) .Values.autoscaling.enabled -}}
{{- if and $several (not $shared) }}{{ fail "more than one replica needs a memory that they share: redis.enabled, or config.store" }}{{ end -}}
{{- if and .Values.redis.enabled $config.store }}{{ fail "redis.enabled is set and config.store too: which one is the store?" }}{{ end -}}
{{- if and .Values.redis.enabled .Values.secrets.storePassword.name }}{{ fail "secrets.storePassword is for a store of your own; the chart's Redis has redis.passwordSecret" }}{{ end -}}
{{- $loopback := has ($config.admin_host | default "127.0.0.1") (list "127.0.0.1" "::1" "localhost") -}}
{{- $admin := include "boomerang.adminPort" . -}}
{{- if and $admin (not $loopback) (not .Values.secrets.adminToken.name) }}{{ fail "config.admin_host is reached by others: that needs secrets.adminToken" }}{{ end -}}
{{- if and $admin (gt (int ($config.workers | default 1)) 1) }}{{ fail "config.admin_port is for one process: with config.workers take it away, config.admin_port=none" }}{{ end -}}
{{- if not (or $config.nodes_file (and (or $config.prefill $config.kubernetes_prefill) (or $config.decode $config.kubernetes_decode))) }}{{ fail "where are the engines? config.kubernetes_prefill and config.kubernetes_decode, or config.prefill and config.decode" }}{{ end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}{{ fail "autoscaling.minReplicas is more than maxReplicas" }}{{ end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) }}{{ fail "ingress.host is required" }}{{ end -}}
{{- end }}

{{- /* The router's settings as YAML. Numbers of a values file are floats here: a million would be written 1e+06. */ -}}
{{- define "boomerang.settings" -}}
{{- $settings := deepCopy .Values.config -}}
{{- if .Values.redis.enabled }}{{ $_ := set $settings "store" (printf "redis://router@%s-redis:6379" (include "boomerang.name" .)) }}{{ end -}}
{{- if or .Values.redis.enabled .Values.secrets.storePassword.name }}{{ $_ := set $settings "store_password_file" "/run/secrets/boomerang/store/password" }}{{ end -}}
{{- if .Values.secrets.storeCa.name }}{{ $_ := set $settings "store_ca_file" "/run/secrets/boomerang/store-ca/ca.crt" }}{{ end -}}
{{- if .Values.secrets.engineApiKey.name }}{{ $_ := set $settings "engine_api_key_file" "/run/secrets/boomerang/engine/key" }}{{ end -}}
{{- if .Values.secrets.adminToken.name }}{{ $_ := set $settings "admin_token_file" "/run/secrets/boomerang/admin/token" }}{{ end -}}
{{- range $key, $value := $settings }}
{{ $key }}: {{ if and (kindIs "float64" $value) (eq (float64 (int64 $value)) $value) }}{{ int64 $value }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{- end }}

{{- /* One projected file: (list "the secret's name" "its key" "the path"); nothing where there is no name. */ -}}
{{- define "boomerang.secretSource" -}}
{{- if index . 0 }}
- secret:
    name: {{ index . 0 }}
    items: [{key: {{ index . 1 }}, path: {{ index . 2 }}}]
{{- end }}
{{- end }}

{{- define "boomerang.secretSources" -}}
{{- $redis := ternary (include "boomerang.redisSecret" .) "" .Values.redis.enabled -}}
{{- include "boomerang.secretSource" (list $redis .Values.redis.passwordSecret.key "store/password") }}
{{- with .Values.secrets }}
{{- include "boomerang.secretSource" (list .storePassword.name .storePassword.key "store/password") }}
{{- include "boomerang.secretSource" (list .storeCa.name .storeCa.key "store-ca/ca.crt") }}
{{- include "boomerang.secretSource" (list .engineApiKey.name .engineApiKey.key "engine/key") }}
{{- include "boomerang.secretSource" (list .adminToken.name .adminToken.key "admin/token") }}
{{- end }}
{{- end }}
